//go:build !linux

package main

func onParentsDeath(func()) error {
	return refuse("leave it out", "--die-with-parent cannot be had on this system yet")
}
