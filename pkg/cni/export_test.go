package cni

// JSON forms.
type (
	Wire01    = wire01
	Wire1     = wire1
	WireError = wireError
)
