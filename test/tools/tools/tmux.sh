tmux -S "$PWD/s" -f /dev/null new-session -d -x 80 -y 24 bash --norc
tmux -S "$PWD/s" send-keys 'echo an""swer $((6 * 7)); tty' Enter
for _ in $(seq 300); do
  tmux -S "$PWD/s" capture-pane -p >screen
  grep -q 'answer 42' screen && break
  sleep 0.1
done
tmux -S "$PWD/s" kill-server
grep -q 'answer 42' screen
grep -q /dev/pts/ screen
