/* dtype.h: the dtype that this unit is compiled for: float, or double with LA_DOUBLE.
 */
#if defined(LA_DOUBLE)
#include "f64.h"
#else
#include "f32.h"
#endif
