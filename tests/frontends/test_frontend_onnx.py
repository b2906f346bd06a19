"""The ONNX frontend gives the values that the ONNX node tests expect: one test per operator, and hard corners.

The whole suites run as `superopt bench --suite onnx-nodes` and `onnx-types`; docs/onnx.md keeps their figures.
Making the cases takes seconds: what needs them stands here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from superopt.lab.bench.onnx.nodes import node_cases, run, run_case, run_model
from superopt.lab.bench.onnx.types import check, difference, named, reference, typed_cases

NODES = """
abs acos_example acosh_example adagrad adam add affine_grid_2d ai_onnx_ml_array_feature_extractor ai_onnx_ml_binarizer
and2d argmax_default_axis_example_select_last_index argmax_no_keepdims_example argmin_no_keepdims_example asin_example
asinh_example atan_example atanh_example attention_4d attention_4d_gqa_with_past_and_present
averagepool_2d_ceil_last_window_starts_on_pad averagepool_2d_precomputed_pads
averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True basic_conv_with_padding
basic_deform_conv_with_padding batchnorm_example bernoulli bitcast_float32_to_int32 bitshift_right_uint8
bitwise_and_i32_2d bitwise_not_2d bitwise_or_i32_2d bitwise_xor_i32_2d blackmanwindow cast_FLOAT_to_FLOAT16
cast_FLOAT_to_FLOAT8E4M3FN cast_FLOAT_to_INT4 castlike_FLOAT_to_FLOAT16 causal_conv_with_state_basic ceil_example celu
center_crop_pad_crop center_crop_pad_crop_and_pad clip_default_inbounds_expanded clip_example col2im compress_0
concat_1d_axis_0 constant constant_pad constantofshape_float_ones conv_with_autopad_same convinteger_without_padding
convtranspose convtranspose_autopad_same convtranspose_dilations cos_example cosh_example cumprod_1d cumsum_1d
depthtospace_example dequantizelinear det_2d dft_irfft dft_opset19 div_example dropout_default dynamicquantizelinear
einsum_batch_matmul einsum_transpose elu_example equal erf exp_example expand_dim_changed eyelike_without_dtype
flatten_axis0 flexattention floor_example gather_0 gather_elements_0 gathernd_example_int32 gelu_tanh_1
gelu_tanh_1_expanded gemm_default_zero_bias globalaveragepool globalmaxpool greater greater_equal gridsample
group_normalization_epsilon_expanded group_normalization_example gru_defaults gru_seq_length hammingwindow hannwindow
hardmax_example hardsigmoid_example hardswish if if_seq instancenorm_example isinf isnan l2normalization_axis_0
layer_normalization_4d_axis0 leakyrelu_example less less_equal linear_attention_linear log_example
logsoftmax_example_1 logsoftmax_example_1_expanded loop11 loop13_seq lppool_1d_default lrn lstm_defaults
lstm_with_peepholes matmul_2d matmulinteger max_example maxpool_2d_ceil maxpool_2d_uint8
maxpool_with_argmax_2d_precomputed_strides maxunpool_export_without_output_shape mean_example melweightmatrix
min_example mish mod_mixed_sign_float64 mod_mixed_sign_int32 momentum mul_example mvn neg_example nllloss_NC
nonzero_example onehot_without_axis optional_get_element_optional_tensor optional_has_element_tensor_input or2d
pow_example prelu_example qlinearconv qlinearmatmul_2D_uint8_float32 quantizelinear range_float_type_positive_delta
reciprocal_example reduce_l1_do_not_keepdims_example reduce_l2_do_not_keepdims_example reduce_log_sum_desc_axes
reduce_log_sum_exp_do_not_keepdims_example reduce_log_sum_exp_do_not_keepdims_random
reduce_max_do_not_keepdims_example reduce_mean_do_not_keepdims_example reduce_min_do_not_keepdims_example
reduce_prod_do_not_keepdims_example reduce_sum_do_not_keepdims_example reduce_sum_square_do_not_keepdims_example relu
reshape_reordered_all_dims reshape_reordered_last_dims resize_downsample_scales_cubic_antialias
resize_upsample_scales_nearest reversesequence_time rms_normalization_4d_axis0 roialign_aligned_false rotary_embedding
round scan9_multi_state scan_sum scatter_elements_without_axis scatter_without_axis scatternd
sce_mean_weight_ii_3d_log_prob_expanded sce_none selu_example sequence_insert_at_back sequence_map_identity_1_sequence
shape_example shrink_hard sigmoid_example sign simple_rnn_defaults sin_example sinh_example size_example slice
slice_neg_steps softmax_axis_0 softmax_example softplus_example softsign_example spacetodepth
split_equal_parts_1d_opset13 split_to_sequence_1 sqrt_example squeeze stft sub_example sum_example swiglu swish
tan_example tanh_example tensorscatter thresholdedrelu_example tile top_k top_k_smallest transpose_default triu
unique_sorted_without_axis unsqueeze_axis_0 upsample_nearest where_example xor2d
"""


# dtypes that JAX has and the graph has not
SMALL = ("cast_FLOAT_to_FLOAT8E4M3FN", "cast_FLOAT_to_INT4")


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    return {case.name: case for case in node_cases()}


@pytest.mark.parametrize("name", NODES.split())
def test_node(name: str, cases: dict[str, Any]) -> None:
    row = run_case(cases[f"test_{name}"])
    assert row.status == ("function" if name in SMALL else "ok"), row.reason


def test_a_wrong_output_is_seen(cases: dict[str, Any]) -> None:
    case = cases["test_add"]
    inputs, (wanted,) = case.data_sets[0]
    wrong = type(case)(**{**case.__dict__, "data_sets": [(inputs, [wanted + 1])]})
    assert run_case(wrong).status == "wrong"


def test_the_suite_counts_and_prints() -> None:
    rows, summary, text = run(cases=["test_relu", "test_regex_full_match_basic"])
    assert {row["name"]: row["status"] for row in rows if "expanded" not in row["name"]} == {
        "test_relu": "ok",
        "test_regex_full_match_basic": "function",
    }
    assert summary["passed"] == len(rows) - 1
    assert summary["passed_as_function"] == len(rows)
    assert f"{summary['pass_percent']} %" in text


# ---- with other types of elements


def test_the_suite_of_types_compares() -> None:
    rows = [check(case, False) for case in typed_cases(["Abs-int8", "Shrink-uint8"])]
    assert {r.status for r in rows} == {"ok"}
    assert {(r.op, r.dtype) for r in rows} == {("Abs", "int8"), ("Shrink", "uint8")}


def test_an_affine_grid_of_halves_is_rounded_once() -> None:
    case = next(c for c in typed_cases(["AffineGrid-float16"]) if c.values == "extreme")
    (got,) = map(np.asarray, run_model(case.model, case.inputs)[1])
    other = got + np.float16(1)
    assert "rounded once" in named(case, [got], [other])
    assert not named(case, [other], [got])


def test_the_suite_of_types_sees_a_difference() -> None:
    case = next(c for c in typed_cases(["Abs-float32"]) if c.values == "test")
    wanted = reference(case.model, case.inputs)[0]
    assert not difference(wanted, wanted)
    assert "for" in difference(wanted + 1, wanted)
    assert "shape" in difference(wanted[:1], wanted)
    assert "float64" in difference(wanted.astype(np.float64), wanted)
    assert not named(case, [wanted + 1], [wanted])


def test_sequences_of_unlike_shapes_are_compared_as_a_whole() -> None:
    case = next(typed_cases(("SplitToSequence-float32",)))
    parts: list[np.ndarray] = [np.ones(2, np.float32), np.ones(3, np.float32)]
    assert named(case, [parts], [parts]) != ""
    assert named(case, [parts], [parts[:1]]) == ""
