package statefile

var (
	FindHolder = findHolder
	ByteHolder = byteHolder
	Temporary  = temporary
)
