# Sourced after a tool, in the same worker: four attempts that must fail. What
# is seen of them outside is what counts; their errors are noise.
{
  echo escaped >"$OUTSIDE/$NAME"
  cat "$KEY" >stolen
  exec 9<>"/dev/tcp/127.0.0.1/$TCP" && echo "$NAME" >&9
  exec 9>&-
  echo "$NAME" >"/dev/udp/127.0.0.1/$UDP"
} 2>/dev/null
touch tried
test -e works
