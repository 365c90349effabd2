package stream

// fionread asks how many bytes can be read: <sys/filio.h>. Package unix has no
// name for it here.
const fionread = 0x4004667f
