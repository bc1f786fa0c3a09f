package durable

// SetExchange has a file system exchange two files in another way.
func (r *Records) SetExchange(exchange func(a, b string) error) { r.exchange = exchange }

// Spares returns the paths of the files that wait to be written again.
func (r *Records) Spares() []string { return r.spares }

// MaxSpares is how many there are at most.
const MaxSpares = maxSpares
