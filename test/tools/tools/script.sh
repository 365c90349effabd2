script -qec 'tty; stty size; test -t 0; echo on a terminal' typescript </dev/null >seen
grep -q 'on a terminal' typescript
grep -q /dev/pts/ seen
if script -qec 'exit 7' /dev/null </dev/null; then exit 1; else test $? = 7; fi
