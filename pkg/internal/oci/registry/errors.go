package registry

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Errors that a caller can test for. The first two are about the image itself.
var (
	ErrNotFound = errors.New("the registry does not have it")
	ErrDigest   = errors.New("the content has another digest")
	ErrDenied   = errors.New("the registry refuses it with these credentials")
	ErrAnswer   = errors.New("the registry's answer breaks the protocol")
	ErrRestarts = errors.New("the registry does not continue downloads")
)

// maxSaid is how many of a registry's own errors are shown.
const maxSaid = 3

// explain adds this package's error to an error of oras-go. It removes the queries of addresses, because storage
// services put credentials there, and errors are reported. It shortens what the registry says to single lines.
func explain(err error) error {
	if sent, ok := errors.AsType[*url.Error](err); ok {
		sent.URL = withoutQuery(sent.URL)
	}
	if answer, ok := errors.AsType[*errcode.ErrorResponse](err); ok {
		if answer.URL != nil {
			bare := url.URL{Scheme: answer.URL.Scheme, Host: answer.URL.Host, Path: answer.URL.Path}
			answer.URL = &bare
		}
		answer.Errors = answer.Errors[:min(len(answer.Errors), maxSaid)]
		for i, said := range answer.Errors {
			answer.Errors[i] = errcode.Error{Code: field.OneLine(said.Code), Message: field.OneLine(said.Message)}
		}
		switch answer.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			return fmt.Errorf("%w: %w", ErrDenied, err)
		case http.StatusNotFound, http.StatusGone:
			return fmt.Errorf("%w: %w", ErrNotFound, err)
		}
	}
	switch {
	case errors.Is(err, errdef.ErrNotFound):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	return err
}

func withoutQuery(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}
