pip=--without-pip
python3 -c 'import ensurepip' 2>/dev/null && pip=
python3 -m venv $pip venv
venv/bin/python main.py | grep -q 'pool 285, lock 40, shared 7, asyncio pong, sqlite 3, spawn 9'
