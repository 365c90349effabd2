make -s -j4
./app | grep -q 'total 10'
make -s clean
