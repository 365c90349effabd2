// Package hold keeps the names of a policy's guarded places for as long as workers
// live: it looks at what stands there, and puts a placeholder where nothing does, as a
// mount needs something to stand on.
//
// A placeholder is an empty directory, which git does not see and whose removal can
// destroy nothing; in a repository's own directory, where git would stumble over one,
// it is a file. It bears a mode that nothing else has, and each launcher whose worker
// needs it holds a shared lock (flock(2)) on it, as does the first process of that
// worker's PID namespace. Whoever can lock it alone is the last, and removes it: the
// launcher at the worker's end; that process if the launcher was killed; and if both
// were, the next launcher, whom a lease (package scratch) tells of it.
package hold

// KindPlaces is the kind of the marks of placeholders in a lease.
const KindPlaces = "places"
