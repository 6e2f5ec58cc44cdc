package statefile

var (
	FindHolder = findHolder
	Temporary  = temporary
)
