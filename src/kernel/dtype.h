/* dtype.h: the dtype that this unit is compiled for: LA_DTYPE names its header, as
 * dtypes.def names it. */
#define LA_DTYPE_QUOTED(file) #file
#define LA_DTYPE_HEADER(dtype) LA_DTYPE_QUOTED(dtype.h)
#include LA_DTYPE_HEADER(LA_DTYPE)
