package manifest

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Millicores are thousandths of a core. In a document they are a whole number, or a text with a Kubernetes quantity of
// cores: "500m", "1.5", "2".
type Millicores int64

// Bytes are a whole number in a document, or a text with a Kubernetes quantity: "256Mi", "1G".
type Bytes int64

const (
	millicoresAllowed = `thousandths of a core as a whole number, or cores as text, such as "500m" or "1.5"`
	bytesAllowed      = `bytes as a whole number, or as text with a unit, such as "256Mi" or "1G"`
)

// UnmarshalJSON reads either form; anything else, also null, is a *field.Error.
func (m *Millicores) UnmarshalJSON(data []byte) error {
	return quantity(data, (*int64)(m), millicoresAllowed, func(q resource.Quantity) (int64, bool) {
		n := q.MilliValue()
		return n, resource.NewMilliQuantity(n, resource.DecimalSI).Cmp(q) == 0
	})
}

// UnmarshalJSON reads either form; anything else, also null, is a *field.Error.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	return quantity(data, (*int64)(b), bytesAllowed, func(q resource.Quantity) (int64, bool) {
		n := q.Value()
		return n, resource.NewQuantity(n, resource.BinarySI).Cmp(q) == 0
	})
}

// quantity reads a number, or a text that whole converts. It refuses fractions, because rounding changes the value.
func quantity(data []byte, into *int64, allowed string, whole func(resource.Quantity) (int64, bool)) error {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return fmt.Errorf("parse quantity: %w", err)
	}
	text, isText := value.(string)
	if !isText {
		if value == nil || json.Unmarshal(data, into) != nil {
			return &field.Error{Value: field.Text(data), Allowed: allowed}
		}
		return nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return &field.Error{Value: text, Allowed: allowed}
	}
	n, ok := whole(q)
	if !ok {
		return &field.Error{Value: text, Allowed: allowed}
	}
	*into = n
	return nil
}
