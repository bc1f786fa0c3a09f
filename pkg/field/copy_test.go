package field_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

type group struct {
	Count *int
	Ports map[string]int
}

type record struct {
	Name   string
	At     *time.Time
	Labels map[string]string
	Groups []group
	Ends   []time.Time
	Inner  *record
	Text   []byte
}

func full() record {
	at, n := time.Unix(1, 0), 3
	inner := record{Name: "inner", Labels: map[string]string{"a": "b"}, Groups: []group{{}}}
	return record{
		Name: "outer", At: &at, Labels: map[string]string{"c": "d"}, Groups: []group{
			{&n, map[string]int{"http": 80}},
			{},
		}, Ends: []time.Time{at}, Inner: &inner,
		Text: []byte("text"),
	}
}

// Changes of a copy do not change the original.
func TestACopySharesNothing(t *testing.T) {
	t.Parallel()
	was := full()
	is := field.Copy(was)
	if !reflect.DeepEqual(is, full()) {
		t.Errorf("the copy is %+v", is)
	}
	*is.At, *is.Groups[0].Count, is.Text[0], is.Ends[0] = time.Time{}, 7, 'n', time.Time{}
	is.Labels["c"], is.Groups[0].Ports["http"], is.Inner.Labels["a"] = "", 0, ""
	is.Inner.Name, is.Inner.Groups[0].Count = "changed", new(int)
	is.Groups = append(is.Groups[:1], group{new(int), nil})
	if !reflect.DeepEqual(was, full()) {
		t.Errorf("the original is %+v now", was)
	}
}

// In a copy, nil stays nil, and an empty map or list stays empty, because records are compared.
func TestACopyKeepsWhatIsEmpty(t *testing.T) {
	t.Parallel()
	for _, r := range []record{
		{},
		{Labels: map[string]string{}, Groups: []group{}, Text: []byte{}, Ends: []time.Time{}},
	} {
		if got := field.Copy(r); !reflect.DeepEqual(got, r) {
			t.Errorf("%#v became %#v", r, got)
		}
	}
}
