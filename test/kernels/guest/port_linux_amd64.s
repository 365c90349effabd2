#include "textflag.h"

// func outb(port uint16, value byte)
TEXT ·outb(SB), NOSPLIT, $0-3
	MOVWLZX port+0(FP), DX
	MOVBLZX value+2(FP), AX
	OUTB
	RET
