"""Fields of diffusers' and transformers' config.json that shapes do not tell, and the values that refsd computes.

A field that is absent has the first. Of a list any one will do. What shapes tell (depths, widths) is not here.
"""

_UNET_TRUNK = {
    "act_fn": ("silu", "swish"),
    "flip_sin_to_cos": (True,),
    "freq_shift": (0,),
    "norm_eps": (1e-5,),
    "class_embed_type": (None,),
    "addition_embed_type": (None, "text_time"),
    "encoder_hid_dim_type": (None,),
    "resnet_time_scale_shift": ("default",),
    "mid_block_scale_factor": (1,),
    "downsample_padding": (1,),
}
_LANGUAGE_MODEL = {
    "hidden_act": ("silu",),
    "rope_type": ("default",),
    "rope_scaling": (None,),
    "sliding_window": (None,),
    "use_sliding_window": (False, None),
    "attention_bias": (False,),
}
_T5 = {
    "relative_attention_max_distance": (128,),
    "layer_norm_epsilon": (1e-6,),
    "feed_forward_proj": ("gated-gelu",),
    "dense_act_fn": ("gelu_new", "gelu_pytorch_tanh"),
    "is_gated_act": (True,),
}
_FLUX = {"patch_size": (1,), "attention_head_dim": (128,), "axes_dims_rope": ([16, 56, 56],)}
_VAE = {"act_fn": ("silu", "swish"), "mid_block_add_attention": (True,)}

COMPUTED: dict[str, dict[str, tuple]] = {
    "unet": {
        **_UNET_TRUNK,
        "center_input_sample": (False,),
        "time_embedding_type": ("positional",),
        "time_embedding_act_fn": (None,),
        "timestep_post_act": (None,),
        "time_cond_proj_dim": (None,),
        "resnet_skip_time_act": (False,),
        "resnet_out_scale_factor": (1,),
        "mid_block_type": ("UNetMidBlock2DCrossAttn", "UNetMidBlock2D", None),
        "dual_cross_attention": (False,),
        "cross_attention_norm": (None,),
        "attention_type": ("default",),
        "conv_in_kernel": (3,),
        "conv_out_kernel": (3,),
    },
    "controlnet": {
        **_UNET_TRUNK,
        "mid_block_type": ("UNetMidBlock2DCrossAttn", "UNetMidBlock2D"),
        "controlnet_conditioning_channel_order": ("rgb",),
        "global_pool_conditions": (False,),
    },
    "vae": {**_VAE, "latents_mean": (None,), "latents_std": (None,)},
    "flux2-vae": {**_VAE, "batch_norm_eps": (1e-4,), "patch_size": ([2, 2],)},
    "tae": {"act_fn": ("relu",), "upsample_fn": ("nearest",), "upsampling_scaling_factor": (2,)},
    "mmdit": {"qk_norm": (None, "rms_norm")},
    "flux": _FLUX,
    "chroma": _FLUX,
    "flux2": {
        "patch_size": (1,),
        "attention_head_dim": (128,),
        "axes_dims_rope": ([32, 32, 32, 32],),
        "rope_theta": (2000,),
        "eps": (1e-6,),
    },
    "zimage": {
        "all_patch_size": ([2],),
        "all_f_patch_size": ([1],),
        "norm_eps": (1e-5,),
        "qk_norm": (True,),
        "rope_theta": (256.0,),
        "t_scale": (1000.0,),
        "axes_dims": ([32, 48, 48],),
        "siglip_feat_dim": (None,),
    },
    "clip": {"layer_norm_eps": (1e-5,), "hidden_act": ("quick_gelu", "gelu")},
    "t5": _T5,
    "qwen3": {**_LANGUAGE_MODEL, "rms_norm_eps": (1e-6,), "rope_theta": (1e6,)},
    "mistral": {**_LANGUAGE_MODEL, "rms_norm_eps": (1e-5,), "rope_theta": (1e9,)},
}
