javac -d classes Main.java
java -cp classes Main | grep -q 'sum 4950, file 3'
