package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"sandboxd/backend/backendtest/attempt"
)

func init() {
	register(map[string]op{
		"aarch32-getpid": {0, aarch32("aarch32-getpid", 20, 0, 0), alone},
		"aarch32-socket": {0, aarch32("aarch32-socket", 281, unix.AF_INET, unix.SOCK_STREAM), alone},
	})
}

// aarch32 becomes a 32-bit program that makes a system call of its own table,
// and writes the result of an attempt that succeeded if the call did. A file in
// memory has no path that a policy could be about.
func aarch32(name string, nr, a, b uint32) func([]string) (string, error) {
	return func([]string) (string, error) {
		result, err := json.Marshal(attempt.Result{Op: name, OK: true})
		if err != nil {
			return "", err
		}
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
		if err != nil {
			return "", fmt.Errorf("a file in memory: %w", err)
		}
		f := os.NewFile(uintptr(fd), name)
		if _, err := f.Write(program32(nr, a, b, result)); err != nil {
			return "", err
		}
		path := "/proc/self/fd/" + strconv.Itoa(fd)
		return "", unix.Exec(path, []string{name}, nil)
	}
}

// program32 is an executable of one segment: the code, and the result, which
// goes to descriptor 3 (see attemptAlone).
func program32(nr, a, b uint32, result []byte) []byte {
	const base, headers = 0x10000, 52 + 32
	code := []uint32{
		0xe59f0034, // ldr   r0, a
		0xe59f1034, // ldr   r1, b
		0xe3a02000, // mov   r2, #0
		0xe59f7030, // ldr   r7, nr
		0xef000000, // svc   0
		0xe3500000, // cmp   r0, #0
		0xba000005, // blt   exit
		0xe3a00003, // mov   r0, #3
		0xe59f1020, // ldr   r1, address
		0xe59f2020, // ldr   r2, length
		0xe3a07004, // mov   r7, #4 (write)
		0xef000000, // svc   0
		0xe3a00000, // mov   r0, #0
		0xe3a07001, // exit: mov r7, #1
		0xef000000, // svc   0
		a, b, nr, 0, uint32(len(result)),
	}
	length := uint32(headers + 4*len(code) + len(result))
	code[len(code)-2] = base + length - uint32(len(result))
	var out bytes.Buffer
	for _, part := range []any{
		[]byte("\x7fELF\x01\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
		[]uint16{2 /* ET_EXEC */, 40 /* EM_ARM */},
		[]uint32{1, base + headers, 52, 0, 0x05000000 /* EF_ARM_EABI_VER5 */},
		[]uint16{52, 32, 1, 0, 0, 0},
		[]uint32{1 /* PT_LOAD */, 0, base, base, length, length, 5 /* R|X */, 0x1000},
		code, result,
	} {
		_ = binary.Write(&out, binary.LittleEndian, part) // of fixed sizes, into memory
	}
	return out.Bytes()
}
