package main

import (
	"maps"
	"runtime"
	"slices"
	"strings"
)

// arch is a kind of processor that machines have, by its GOARCH, which is
// Debian's name for it too. None of them needs the host to be of its kind.
type arch struct {
	name string
	// qemu is the emulator, and of which package it is.
	qemu, qemuPackage string
	// console is where the kernel and init write for people: guest/ has the lines'
	// names again.
	console string
	// machine are QEMU's arguments beside those that all have.
	machine []string
	// results gives the machine a second serial line, of which QEMU writes the
	// bytes to a file; "" drops them.
	results func(file string) []string
	// done is QEMU's exit status when init ends the machine with 0.
	done int
}

const (
	amd64 = "amd64"
	arm64 = "arm64"
)

var arches = map[string]arch{
	// The command line that has not failed in hundreds of boots. It avoids:
	//
	//   - KVM: where it emulates (a guest that is itself a guest), stock kernels
	//     hang in it, and it opens, so that a fall-back never happens;
	//   - cx16: QEMU 7.2 corrupts the guest around cmpxchg16b, Linux 6.12 oopses;
	//   - microvm: the calibration of its TSC hangs now and then;
	//   - more than one CPU: wants thread=single on 7.2, and oopsed without.
	amd64: {
		name: amd64, qemu: "qemu-system-x86_64", qemuPackage: "qemu-system-x86", console: "ttyS0",
		machine: []string{
			"-M", "pc", "-cpu", "max,-cx16",
			// init ends the machine by a write to this port: QEMU's status is 2*code+1.
			"-device", "isa-debug-exit,iobase=0xf4,iosize=4",
		},
		results: func(file string) []string {
			if file == "" {
				return []string{"-serial", "null"}
			}
			return []string{"-serial", "file:" + file}
		},
		done: 1,
	},
	// The board has one UART that the kernel may use; the other is on its PCI bus.
	// A power-off is QEMU's status 0, and so is a reset: the last record tells one
	// from the other. This processor has no pointer authentication, which costs
	// most of the time where it is emulated, and runs 32-bit programs, which the
	// sandbox must refuse.
	arm64: {
		name: arm64, qemu: "qemu-system-aarch64", qemuPackage: "qemu-system-arm", console: "ttyAMA0",
		machine: []string{"-M", "virt", "-cpu", "neoverse-n1"},
		results: func(file string) []string {
			chardev := "null,id=results"
			if file != "" {
				chardev = "file,id=results,path=" + strings.ReplaceAll(file, ",", ",,")
			}
			return []string{"-chardev", chardev, "-device", "pci-serial,chardev=results"}
		},
	},
}

// hostArch is what the host's own programs are for.
const hostArch = runtime.GOARCH

// archesOf are those of the machines, by name.
func archesOf(list []machine) []string {
	var names []string
	for _, m := range list {
		names = append(names, m.Arch)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func archNames() []string { return slices.Sorted(maps.Keys(arches)) }
