// Package webhook posts JSON to others over HTTP, to ask whether something may go on or to tell them something, and
// reads off the status what they say to that.
package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// maxAnswer bounds what is read of an answer, and maxReason what of it is told, in bytes.
const (
	maxAnswer = 64 * 1024
	maxReason = 300
)

// CheckURL reports, as a *field.Error of the given field, why nobody can be asked at a URL.
func CheckURL(name, text string) error {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil {
		return &field.Error{Field: name, Value: text, Allowed: `a URL such as "https://gate.example/check", without a user or a password`}
	}
	return nil
}

// asker follows no redirect: what was asked is answered where it was asked.
var asker = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// Ask posts the body as JSON, once, and returns nil when the answer is a status from 200 to 299. Any other one, a redirect among them,
// and none within the timeout is an error, which says what came, or the context's cause.
func Ask(ctx context.Context, to string, timeout time.Duration, body any) error {
	return Post(ctx, to, to, timeout, body)
}

// Post is Ask for a URL that may be a secret: errors call it name.
func Post(ctx context.Context, to, name string, timeout time.Duration, body any) error {
	if err := CheckURL("url", to); err != nil {
		return err
	}
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode what is posted to %s: %w", name, err)
	}
	call, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(call, http.MethodPost, to, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := asker.Do(req)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case call.Err() != nil:
		return fmt.Errorf("post to %s: no answer within %s", name, timeout)
	case err != nil:
		if of, is := errors.AsType[*url.Error](err); is {
			err = of.Err // it names the URL itself
		}
		return fmt.Errorf("post to %s: %w", name, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 == 2 {
		return nil
	}
	said, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // what came is told; the status decides
	text := fmt.Sprintf("%s answered %s", name, resp.Status)
	if words := strings.Join(strings.Fields(string(said)), " "); words != "" {
		text += ": " + field.Cut(words, maxReason)
	}
	return errors.New(text)
}
