mkdir -p a/b/c 'with space'
for i in $(seq 200); do echo "$i" >"a/b/f$i"; done
echo x >'with space/f x'
find . -type f -name 'f*' -print0 | xargs -0 -n 20 -P 4 cat >all
test "$(wc -l <all)" = 201
find a -name 'f1*' -exec grep -l 1 {} + | wc -l >/dev/null
find a -type f -delete
test "$(find a -type f | wc -l)" = 0
