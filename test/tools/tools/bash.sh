test "$(seq 100 | grep 7 | wc -l)" = 19
cat <<END >here
one $((1 + 1))
END
test "$(cat here)" = 'one 2'
test "$(cat <<<word)" = word
diff <(seq 3) <(printf '1\n2\n3\n')
seq 3 | tee >(cat >copy) >/dev/null
for i in 1 2 3; do (sleep 0.1; echo "$i") & done >jobs
wait
test "$(wc -l <jobs)" = 3
set -m
sleep 30 & kill %1; wait %1 2>/dev/null || test $? = 143
set +m
trap 'echo caught >trapped' USR1; kill -USR1 $BASHPID; test -s trapped
mkfifo pipe; echo through >pipe & test "$(cat pipe)" = through
coproc C { read -r x; echo "got $x"; }
echo hi >&"${C[1]}"; read -r answer <&"${C[0]}"; test "$answer" = 'got hi'
ulimit -n >/dev/null
echo x >/dev/null; echo x >/dev/stderr; : >"$(mktemp)"
