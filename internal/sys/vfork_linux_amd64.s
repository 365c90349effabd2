#include "textflag.h"

// func vfork(nr, a0, a1, a2, a3, a4 uintptr) (pid uintptr, errno uintptr)
//
// The child goes on on this stack and overwrites what is above, so the parent,
// which stands still meanwhile, keeps its return address in a register.
TEXT ·vfork(SB),NOSPLIT|NOFRAME,$0-64
	MOVQ	nr+0(FP), AX
	MOVQ	a0+8(FP), DI
	MOVQ	a1+16(FP), SI
	MOVQ	a2+24(FP), DX
	MOVQ	a3+32(FP), R10
	MOVQ	a4+40(FP), R8
	MOVQ	$0, R9
	MOVQ	0(SP), R12
	SYSCALL
	MOVQ	R12, 0(SP)
	CMPQ	AX, $-4095
	JCC	failed
	MOVQ	AX, pid+48(FP)
	MOVQ	$0, errno+56(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$0, pid+48(FP)
	MOVQ	AX, errno+56(FP)
	RET
