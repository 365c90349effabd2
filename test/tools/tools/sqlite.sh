sqlite3 t.db 'pragma journal_mode=wal; create table t(n); insert into t values (1),(2);'
test "$(sqlite3 t.db 'select sum(n) from t')" = 3
