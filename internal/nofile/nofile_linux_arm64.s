#include "textflag.h"

#define SYS_prlimit64 261
#define RLIMIT_NOFILE 7

// func getrlimit(l *Limit) int64
TEXT ·getrlimit(SB),NOSPLIT,$0-16
	MOVD	$0, R0
	MOVD	$RLIMIT_NOFILE, R1
	MOVD	$0, R2
	MOVD	l+0(FP), R3
	MOVD	$SYS_prlimit64, R8
	SVC
	MOVD	R0, ret+8(FP)
	RET
