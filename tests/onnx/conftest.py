"""What the tests of the export to ONNX need."""

from needed import needing

pytest_pycollect_makemodule = needing(
    "torch", "ml_dtypes", "onnx", "onnxruntime", "onnxscript", test_reference_cases=("onnx",)
)
