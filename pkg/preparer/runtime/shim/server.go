package shim

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// A request's context ends when the client's connection or the supervisor ends.
func (s *supervisor) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+startPath, post(s, s.start))
	mux.HandleFunc("POST "+containPath, post(s, s.start))
	mux.HandleFunc("POST "+stopPath, post(s, func(ctx context.Context, t target) error { return s.stop(ctx, t.ID) }))
	mux.HandleFunc("POST "+restartPath,
		post(s, func(_ context.Context, ask runtime.RestartRequest) error { return s.restart(ask) }))
	mux.HandleFunc("POST "+relimitPath,
		post(s, func(_ context.Context, to runtime.LimitRequest) error { return s.relimit(to) }))
	mux.HandleFunc("POST "+removePath, post(s, func(ctx context.Context, t target) error { return s.remove(ctx, t.ID) }))
	mux.HandleFunc("GET "+pingPath,
		func(w http.ResponseWriter, r *http.Request) { s.answer(w, nil, s.ping(r.Context())) })
	mux.HandleFunc("GET "+watchPath, func(w http.ResponseWriter, r *http.Request) {
		var cursors [2]uint64
		for i, text := range []string{r.URL.Query().Get("cursor"), cmp.Or(r.URL.Query().Get("base"), "0")} {
			var err error
			if cursors[i], err = strconv.ParseUint(text, 10, 64); err != nil {
				s.answer(w, nil, fmt.Errorf("%w: cursor or base: %w", runtime.ErrInvalid, err))
				return
			}
		}
		snap, changed := s.watch(r.Context(), cursors[0], cursors[1])
		switch {
		case changed:
			s.answer(w, snap, nil)
		case r.Context().Err() != nil:
			s.answer(w, nil, errLeaving)
		default:
			s.answer(w, nil, nil)
		}
	})
	return mux
}

// If do returns nil, the answer has no content.
func post[T any](s *supervisor, do func(context.Context, T) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in T
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&in)
		if err != nil {
			err = fmt.Errorf("%w: read request: %w", runtime.ErrInvalid, err)
		} else {
			err = do(r.Context(), in)
		}
		s.answer(w, nil, err)
	}
}

func (s *supervisor) answer(w http.ResponseWriter, body any, err error) {
	status := http.StatusOK
	switch {
	case err != nil:
		body, status = failureOf(err)
	case body == nil:
		w.WriteHeader(http.StatusNoContent)
		return
	}
	data, err := json.Marshal(body)
	if err != nil {
		s.cfg.Log("answer not encoded", map[string]any{"error": err})
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data) // if the connection is lost, the client asks again
}
