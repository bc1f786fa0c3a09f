package shim

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// handler serves the protocol. Contexts of requests end with the client's connection and with the supervisor.
func (s *supervisor) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+startPath, func(w http.ResponseWriter, r *http.Request) {
		var spec runtime.Spec
		err := decode(w, r, &spec)
		if err == nil {
			err = s.start(r.Context(), spec)
		}
		s.answer(w, nil, err)
	})
	mux.HandleFunc("POST "+stopPath, func(w http.ResponseWriter, r *http.Request) {
		var t target
		err := decode(w, r, &t)
		if err == nil {
			err = s.stop(r.Context(), t.ID)
		}
		s.answer(w, nil, err)
	})
	mux.HandleFunc("POST "+removePath, func(w http.ResponseWriter, r *http.Request) {
		var t target
		err := decode(w, r, &t)
		if err == nil {
			err = s.remove(t.ID)
		}
		s.answer(w, nil, err)
	})
	mux.HandleFunc("GET "+watchPath, func(w http.ResponseWriter, r *http.Request) {
		cursor, err := strconv.ParseUint(r.URL.Query().Get("cursor"), 10, 64)
		if err != nil {
			s.answer(w, nil, fmt.Errorf("%w: cursor: %w", runtime.ErrInvalid, err))
			return
		}
		base, err := strconv.ParseUint(cmp.Or(r.URL.Query().Get("base"), "0"), 10, 64)
		if err != nil {
			s.answer(w, nil, fmt.Errorf("%w: base: %w", runtime.ErrInvalid, err))
			return
		}
		snap, changed := s.watch(r.Context(), cursor, base)
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

func decode(w http.ResponseWriter, r *http.Request, into any) error {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(into); err != nil {
		return fmt.Errorf("%w: read request: %w", runtime.ErrInvalid, err)
	}
	return nil
}

// answer sends the body, or no content without one, or the error.
func (s *supervisor) answer(w http.ResponseWriter, body any, err error) {
	status := http.StatusOK
	switch {
	case errors.Is(err, errLeaving):
		status, body = http.StatusServiceUnavailable, failureOf(err)
	case errors.Is(err, runtime.ErrExists), errors.Is(err, runtime.ErrNotStopped):
		status, body = http.StatusConflict, failureOf(err)
	case errors.Is(err, runtime.ErrInvalid):
		status, body = http.StatusBadRequest, failureOf(err)
	case err != nil:
		status, body = http.StatusInternalServerError, failureOf(err)
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
	_, _ = w.Write(data) // a client that is gone asks again
}
