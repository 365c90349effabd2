#include <pthread.h>
#include <stdio.h>

int one(void), two(void), three(void), four(void), sum(int, int);

static void *add(void *n) {
	*(int *)n = sum(sum(one(), two()), sum(three(), four()));
	return NULL;
}

int main(void) {
	int n = 0;
	pthread_t t;
	if (pthread_create(&t, NULL, add, &n) || pthread_join(t, NULL))
		return 1;
	printf("total %d\n", n);
	return 0;
}
