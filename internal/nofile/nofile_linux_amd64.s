#include "textflag.h"

#define SYS_prlimit64 302
#define RLIMIT_NOFILE 7

// func getrlimit(l *Limit) int64
TEXT ·getrlimit(SB),NOSPLIT,$0-16
	MOVQ	$0, DI
	MOVQ	$RLIMIT_NOFILE, SI
	MOVQ	$0, DX
	MOVQ	l+0(FP), R10
	MOVQ	$SYS_prlimit64, AX
	SYSCALL
	MOVQ	AX, ret+8(FP)
	RET
