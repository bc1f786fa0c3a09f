package app

import (
	"runtime"
	"testing"
)

// While a roomy heap is kept, the collector does not run before the program has allocated that much.
func TestRoomyHeapDelaysTheCollector(t *testing.T) {
	t.Parallel()
	kept := RoomyHeap()
	runtime.GC()
	var m runtime.MemStats
	if runtime.ReadMemStats(&m); m.NextGC < 2*heapFloor {
		t.Errorf("the collector runs at %d bytes", m.NextGC)
	}
	runtime.KeepAlive(kept)
}
