package store

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// spell writes text as an attacker with a token could.
func spell(t *testing.T, st *Store, key, text string) {
	t.Helper()
	if _, err := st.c.Commit(t.Context(), []consul.Op{consul.Set(key, []byte(text))}); err != nil {
		t.Fatal(err)
	}
}

func asJSON(v any) []byte {
	data, err := encode(v)
	if err != nil {
		panic(err) // the record is made by a test
	}
	return data
}

func hexOf(text string) string { return manifest.Digest([]byte(text)) }

func page(n int, orphans ...string) string {
	return fmt.Sprintf(`{"node":"n1","page":%d,"edition":"e","nonce":"n0","orphans":[%s]}`, n,
		strings.Join(orphans, ","))
}

// With wrong numbers in a node's record about its pages, a reader gets an error, reads no more than exists, and does
// not panic.
func TestARecordIsNotTrustedAboutItsPages(t *testing.T) {
	t.Parallel()
	st, _, _ := nodeSession(t)
	spell(t, st, st.keys.OrphanPages.Key("n1", "0"), page(0))
	for name, said := range map[string]string{
		"a negative number of orphans": `{"edition":"e","count":1,"orphans":-1}`,
		"a negative number of pages":   `{"edition":"e","count":-1,"orphans":1}`,
		"very many orphans":            `{"edition":"e","count":1,"orphans":2000000000}`,
		"very many pages":              `{"edition":"e","count":2000000000,"orphans":1}`,
		"the most that there can be": fmt.Sprintf(`{"edition":"e","count":%d,"orphans":%d}`,
			math.MaxInt64, math.MaxInt64),
	} {
		spell(t, st, st.keys.Nodes.Key("n1"), `{"name":"n1","capacity":{"slots":1},"orphan_pages":`+said+`}`)
		_, complete, err := st.NodeOrphans(t.Context(), "n1")
		if !IsCorrupt(err) || complete || !strings.Contains(err.Error(), "orphan_pages.") ||
			!strings.Contains(err.Error(), "allowed") {
			t.Errorf("%s: whole: %t, %v", name, complete, err)
		}
	}
}

// An invalid orphan on a page is counted and left out. The others are returned.
func TestAnOrphanThatCannotBeIsLeftOut(t *testing.T) {
	t.Parallel()
	st, _, _ := nodeSession(t)
	good, err := json.Marshal(many(1)[0])
	if err != nil {
		t.Fatal(err)
	}
	was := func(change func(*pod.Orphan)) string {
		o := many(1)[0]
		change(&o)
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for name, bad := range map[string]string{
		"no digest":       was(func(o *pod.Orphan) { o.Digest = "" }),
		"another digest":  was(func(o *pod.Orphan) { o.Digest = strings.Repeat("x", 64) }),
		"negative index":  was(func(o *pod.Orphan) { o.Index = -1 }),
		"large index":     was(func(o *pod.Orphan) { o.Index = math.MaxInt64 }),
		"no role":         was(func(o *pod.Orphan) { o.Role = "" }),
		"role with slash": was(func(o *pod.Orphan) { o.Role = "main/../other" }),
		"no controller":   was(func(o *pod.Orphan) { o.RCID = "" }),
		"long controller": was(func(o *pod.Orphan) { o.RCID = strings.Repeat("x", 64) }),
		"no pod":          was(func(o *pod.Orphan) { o.PodID = "" }),
		"large port":      was(func(o *pod.Orphan) { o.Ports = map[string]int{"http": 70000} }),
		"negative port":   was(func(o *pod.Orphan) { o.Ports = map[string]int{"http": -1} }),
		"negative memory": was(func(o *pod.Orphan) { o.Memory = -1 }),
		"very much CPU":   was(func(o *pod.Orphan) { o.CPU = math.MaxInt64 }),
		"no revision":     was(func(o *pod.Orphan) { o.Revision = -1 }),
		"no such number":  `{"rc_id":"a","role":"main","index":1e99}`,
		"no object":       `"x"`,
	} {
		spell(t, st, st.keys.OrphanPages.Key("n1", "0"), page(0, bad, string(good)))
		spell(t, st, st.keys.Nodes.Key("n1"),
			`{"name":"n1","capacity":{"slots":1},"orphan_pages":{"edition":"e","count":1,"orphans":2}}`)
		rec, complete, err := st.NodeOrphans(t.Context(), "n1")
		if err != nil || !complete || len(rec.Value.Orphans) != 1 || rec.Value.OrphansLeftOut != 1 {
			t.Errorf("%s: %+v, whole: %t, %v", name, rec.Value.Orphans, complete, err)
		}
	}
}
