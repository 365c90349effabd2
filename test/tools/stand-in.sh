#!/usr/bin/env bash
# A launcher that confines nothing: for run.sh --self-test.
[ "$1" = run ] && shift
while [ $# -gt 0 ]; do
  case $1 in
    --) shift; break ;;
    --env) case $2 in *=*) export "${2?}" ;; esac; shift 2 ;;
    --*) shift 2 ;;
    *) break ;;
  esac
done
exec "$@"
