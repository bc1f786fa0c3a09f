package app

// heapFloor is how much a farm may throw away before the collector runs, in bytes. A farm holds some 10 MB for a thousand nodes, and
// makes several times that in a pass that places thousands of pods: each time that as much again was made as it holds, the collector
// would run, for 10 ms of processor time.
const heapFloor = 32 << 20

// RoomyHeap returns what makes the collector of a farm's program run less often, for as long as it is kept (runtime.KeepAlive). Nobody
// touches it, so that it takes no memory itself; but the collector counts it among what the program holds.
func RoomyHeap() any { return make([]byte, heapFloor) }
