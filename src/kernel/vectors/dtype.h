/* dtype.h: includes the header of the dtype that this unit is compiled for, which
 * LA_DTYPE names (a name of dtypes.def). */
#define LA_DTYPE_QUOTED(file) #file
#define LA_DTYPE_HEADER(dtype) LA_DTYPE_QUOTED(dtype.h)
#include LA_DTYPE_HEADER(LA_DTYPE)
