package store

import (
	"fmt"
	"os"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

func TestMain(m *testing.M) { os.Exit(consultest.Main(m)) }

// A bell is removed only on condition that its controller does not exist.
func TestASweepRemovesNoBellOfALivingController(t *testing.T) {
	t.Parallel()
	st := empty(t)
	client, keys := st.c, st.keys
	session := st.FarmSession(&consul.Session{}, "f")
	const shard = 3
	var alive []string
	for i := 0; len(alive) < 64; i++ {
		if id := fmt.Sprintf("rc%d", i); shardOf(id) == shard {
			alive = append(alive, id)
			if _, err := client.Commit(t.Context(),
				[]consul.Op{consul.Set(keys.RCs.Key(id), nil), consul.Set(keys.Bells.Key(id), nil)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	bells, err := client.List(t.Context(), keys.Bells.Shard(shard), consul.Default)
	if err != nil {
		t.Fatal(err)
	}
	// The sweep's list is older than these controllers. It has one other id, whose bell is missing.
	missing := ""
	for i := 0; missing == ""; i++ {
		if id := fmt.Sprintf("other%d", i); shardOf(id) == shard {
			missing = id
		}
	}
	if err := session.sweepShard(t.Context(), shard, bells, []string{missing}); err != nil {
		t.Fatal(err)
	}
	left, err := client.List(t.Context(), keys.Bells.Shard(shard), consul.Default)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) < len(bells) {
		t.Errorf("%d bells of living controllers, %d after the sweep", len(bells), len(left))
	}
}

func TestANewEpochIsAboveTheOldOneWhateverTheClock(t *testing.T) {
	t.Parallel()
	ahead := "7zzzzzzzzz" + newSchema().Epoch[10:]
	ahead = "7" + "0" + ahead[2:]
	if got := newSchema(ahead).Epoch; got <= ahead {
		t.Errorf("%s is not above %s", got, ahead)
	}
}
