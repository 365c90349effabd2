#include "textflag.h"

// func vfork(nr, a0, a1, a2, a3, a4 uintptr) (pid uintptr, errno uintptr)
//
// The child goes on on this stack; the parent's return address is in R30.
TEXT ·vfork(SB),NOSPLIT|NOFRAME,$0-64
	MOVD	nr+0(FP), R8
	MOVD	a0+8(FP), R0
	MOVD	a1+16(FP), R1
	MOVD	a2+24(FP), R2
	MOVD	a3+32(FP), R3
	MOVD	a4+40(FP), R4
	MOVD	$0, R5
	SVC
	CMN	$4095, R0
	BCS	failed
	MOVD	R0, pid+48(FP)
	MOVD	ZR, errno+56(FP)
	RET
failed:
	NEG	R0, R0
	MOVD	ZR, pid+48(FP)
	MOVD	R0, errno+56(FP)
	RET
