seq 3000000 | awk '{ print ($1 * 7919) % 3000017 }' >big
test "$(stat -c %s big)" -gt 20000000
sort -n -S 1M big >sorted
sort -n -c sorted
test "$(wc -l <sorted)" = 3000000
rm big sorted
