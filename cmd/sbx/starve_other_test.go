//go:build !linux

package main

func starve() {}
