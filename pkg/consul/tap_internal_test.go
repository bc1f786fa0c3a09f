package consul

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"
)

const onePair = `{"LockIndex":2,"Key":"a/b","Flags":7,"Value":"aGVsbG8=","Session":"s","CreateIndex":3,"ModifyIndex":18446744073709551615}`

var one = &api.KVPair{
	LockIndex: 2, Key: "a/b", Flags: 7, Value: []byte("hello"), Session: "s", CreateIndex: 3,
	ModifyIndex: 18446744073709551615,
}

// The tap finds the same pairs as encoding/json, or leaves the answer to the API client.
func TestTap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, body string
		want       []*api.KVPair
		left       string
	}{
		{"no pairs", ` [ ] `, nil, `[]`},
		{"a pair", `[` + onePair + `]`, []*api.KVPair{one}, `[]`},
		{
			"indented, as in dev mode", "[\n    {\n        \"Key\": \"k\",\n        \"Value\": null\n    },\n {}]\n",
			[]*api.KVPair{{Key: "k"}, {}},
			`[]`,
		},
		{"an empty value", `[{"Key":"k","Value":""}]`, []*api.KVPair{{Key: "k", Value: []byte{}}}, `[]`},
		{"escaped", `[{"Key":"\u003ca\"\\\u003e"}]`, []*api.KVPair{{Key: `<a"\>`}}, `[]`},
		{"no UTF-8", "[{\"Key\":\"\xff\"}]", []*api.KVPair{{Key: "\ufffd"}}, `[]`},
		{
			"unknown fields", `[{"More":{"a":[1,"}"]},"Key":"k","Partition":"p","New":null}]`,
			[]*api.KVPair{{Key: "k"}},
			`[]`,
		},
		{
			"a transaction", `{"Results":[{"KV":` + onePair + `},{"Node":{}},{"KV":null}],"Errors":null,"Index":9}`,
			[]*api.KVPair{one},
			`{}`,
		},
		{"a transaction without results", `{"Results":null,"Errors":[]}`, nil, `{}`},
		{"a transaction of nothing", `{}`, nil, `{}`},
	} {
		tp := &tap{}
		if left := tp.take([]byte(tt.body)); string(left) != tt.left || !tp.took {
			t.Errorf("%s: left %q, took %v", tt.name, left, tp.took)
		}
		if diff := cmp.Diff(tt.want, tp.pairs); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
	for _, body := range []string{
		``, `null`, `[`, `[{]`, `[{}`, `[{},]`, `[null]`, `[{}]x`, `{`, `{"Results":[}`,
		`{"Results":[{"KV":{},"KV":{}}]}`, `{"Results":[],"Results":[]}`,
		`[{"Key":"k" "Flags":1}]`, `[{"Key":1}]`, `[{"Key":null}]`, `[{"Key":"k]`, `[{"Key":"\x"}]`, `[{"Value":"a"}]`,
		`[{"Value":"a`, `[{"key":"k"}]`,
		`[{"Flags":01}]`, `[{"Flags":-1}]`, `[{"Flags":18446744073709551616}]`, `[{"Flags":1e3}]`, `[{"New":}]`,
		`{"results":[]}`, `{"Results":[{"kv":{}}]}`,
		`[{"Key"}]`, "[{\"Key\":\"a\nb\"}]",
	} {
		tp := &tap{}
		if left := tp.take([]byte(body)); left != nil || tp.took || tp.pairs != nil {
			t.Errorf("%s: left %q, took %v", body, left, tp.pairs)
		}
	}
}

func FuzzTap(f *testing.F) {
	for _, seed := range []string{
		`[]`, `[` + onePair + `,{}]`, `{"Results":[{"KV":` + onePair + `}],"Errors":null}`,
		`[{"Key":"\u0000","New":[{}]}]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		tp := &tap{}
		if tp.take(body) == nil {
			return
		}
		var want []*api.KVPair
		var err error
		if bytes.HasPrefix(bytes.TrimSpace(body), []byte("[")) {
			err = json.Unmarshal(body, &want)
		} else {
			var resp api.TxnResponse
			err = json.Unmarshal(body, &resp)
			for _, r := range resp.Results {
				if r.KV != nil {
					want = append(want, r.KV)
				}
			}
		}
		for _, p := range want {
			p.Namespace, p.Partition = "", "" // no program reads them
		}
		if err != nil {
			t.Fatalf("%q was understood; encoding/json says %v", body, err)
		}
		if diff := cmp.Diff(append([]*api.KVPair{}, want...), append([]*api.KVPair{}, tp.pairs...)); diff != "" {
			t.Fatalf("%q: %s", body, diff)
		}
	})
}

type answering struct {
	status int
	body   io.Reader
}

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.status, ContentLength: -1, Body: io.NopCloser(a.body)}, nil
}

// The API client gets an answer unchanged if no tap was set, if the status is not 200, or if the tap cannot parse it.
// If an answer breaks off, the API client gets the error.
func TestTapsLeaveOthersAlone(t *testing.T) {
	t.Parallel()
	list := `[` + onePair + `]`
	for _, tt := range []struct {
		name   string
		asked  bool
		from   answering
		want   string
		broken bool
	}{
		{"asked for", true, answering{200, strings.NewReader(list)}, `[]`, false},
		{"not asked for", false, answering{200, strings.NewReader(list)}, list, false},
		{"refused", true, answering{409, strings.NewReader(list)}, list, false},
		{"not understood", true, answering{200, strings.NewReader(`[1]`)}, `[1]`, false},
		{
			"broken off", true,
			answering{200, io.MultiReader(strings.NewReader(list), iotest.ErrReader(errors.New("reset")))},
			list, true,
		},
	} {
		ctx := t.Context()
		if tt.asked {
			ctx, _ = tapped(ctx)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://consul/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := taps{tt.from}.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if string(body) != tt.want || (err != nil) != tt.broken {
			t.Errorf("%s: %q, %v", tt.name, body, err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkTap(b *testing.B) {
	var list []*api.KVPair
	for i := range 625 {
		list = append(list, &api.KVPair{
			Key:   fmt.Sprintf("rcfarm/bells/7/01k3z8q4x5v9f2n7b6m1c0%04d", i),
			Value: []byte("01K3Z8Q4X5V9F2N7B6M1C0D8EA"), ModifyIndex: uint64(i), CreateIndex: 7,
		})
	}
	body, err := json.MarshalIndent(list, "", "    ")
	if err != nil {
		b.Fatal(err)
	}
	b.Run("tap", func(b *testing.B) {
		for b.Loop() {
			if tp := (&tap{}); tp.take(body) == nil {
				b.Fatal("not understood")
			}
		}
	})
	b.Run("encoding-json", func(b *testing.B) {
		for b.Loop() {
			var got []*api.KVPair
			if err := json.NewDecoder(bytes.NewReader(body)).Decode(&got); err != nil {
				b.Fatal(err)
			}
		}
	})
}
