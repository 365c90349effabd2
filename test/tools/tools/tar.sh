mkdir -p src/sub; echo data >src/sub/f; ln -s sub/f src/link; ln src/sub/f src/hard; chmod 751 src/sub; mkfifo src/fifo
tar -czf a.tgz src
mkdir out; tar -xzpf a.tgz -C out
test "$(cat out/src/link)" = data
test "$(stat -c %a out/src/sub)" = 751
test out/src/hard -ef out/src/sub/f
tar -cf - src/sub | (cd out && tar -xf -)
cp -a src copy; mv copy out/moved
