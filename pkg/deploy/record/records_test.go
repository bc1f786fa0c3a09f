package record_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// An ending leaves all else of an entry as it is, what a later version wrote too; and it is written once, and for its own rollout.
func TestEndingOfAnEntry(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	e := record.Ending{Rollout: "a", EndedAt: &at, Outcome: rollout.Failed, Reason: "why"}
	got, err := e.Into([]byte(`{"rollout":"a","revision":12345678901234567,"spec":{"later":1},"later":{"b":2}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"ended_at":"2026-01-02T03:04:05Z","later":{"b":2},"outcome":"failed","reason":"why","revision":12345678901234567,"rollout":"a","spec":{"later":1}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	var back record.Entry
	if err := json.Unmarshal(got, &back); err != nil || back.Outcome != rollout.Failed || !back.EndedAt.Equal(at) {
		t.Errorf("%+v, %v", back, err)
	}
	for _, other := range []string{string(got), `{"rollout":"b"}`, `{}`} {
		if _, err := e.Into([]byte(other)); !errors.Is(err, record.ErrOtherRollout) {
			t.Errorf("%s: %v", other, err)
		}
	}
	if _, err := e.Into([]byte(`[`)); err == nil {
		t.Error("an entry that cannot be read has an ending")
	}
}
