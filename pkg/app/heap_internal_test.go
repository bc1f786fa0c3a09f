package app

import (
	"runtime"
	"testing"
)

// While a roomy heap is kept, the collector leaves at least that much alone.
func TestRoomyHeap(t *testing.T) {
	t.Parallel()
	kept := RoomyHeap()
	runtime.GC()
	var m runtime.MemStats
	if runtime.ReadMemStats(&m); m.NextGC < 2*heapFloor {
		t.Errorf("the collector runs at %d bytes", m.NextGC)
	}
	runtime.KeepAlive(kept)
}
