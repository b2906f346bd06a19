"""Forward passes of networks: weights are the first argument and do not change from call to call."""

from __future__ import annotations

from typing import Any

from tests.upstream.registry import Built, Draw, program

WEIGHTS = {"frozen": 0}


@program("transformers")
def bert_encoder(draw: Draw) -> Built:
    from transformers import BertConfig, FlaxBertModel

    config = BertConfig(
        num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024, vocab_size=3000
    )
    model = FlaxBertModel(config, seed=0)

    def encode(params: Any, ids: Any, mask: Any) -> Any:
        return model(ids, attention_mask=mask, params=params).last_hidden_state

    mask = (draw.integers(10, 4, 64) > 0).astype("int32")
    return Built(encode, (model.params, draw.integers(3000, 4, 64), mask), options=WEIGHTS)


@program("transformers")
def gpt2_logits(draw: Draw) -> Built:
    from transformers import FlaxGPT2LMHeadModel, GPT2Config

    config = GPT2Config(n_layer=3, n_embd=192, n_head=6, vocab_size=2000, n_positions=128)
    model = FlaxGPT2LMHeadModel(config, seed=0)

    def logits(params: Any, ids: Any) -> Any:
        return model(ids, params=params).logits

    return Built(logits, (model.params, draw.integers(2000, 2, 48)), options=WEIGHTS)


@program("transformers")
def bart_seq2seq(draw: Draw) -> Built:
    from transformers import BartConfig, FlaxBartForConditionalGeneration

    config = BartConfig(
        d_model=192,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        vocab_size=1500,
        max_position_embeddings=64,
    )
    model = FlaxBartForConditionalGeneration(config, seed=0)

    def logits(params: Any, ids: Any, targets: Any) -> Any:
        return model(ids, decoder_input_ids=targets, params=params).logits

    return Built(logits, (model.params, draw.integers(1500, 2, 32), draw.integers(1500, 2, 16)), options=WEIGHTS)


@program("transformers")
def vit_classifier(draw: Draw) -> Built:
    from transformers import FlaxViTForImageClassification, ViTConfig

    config = ViTConfig(
        hidden_size=192, num_hidden_layers=3, num_attention_heads=6, intermediate_size=768, image_size=96, num_labels=10
    )
    model = FlaxViTForImageClassification(config, seed=0)

    def classify(params: Any, images: Any) -> Any:
        return model(images, params=params).logits

    return Built(classify, (model.params, draw.normal(4, 3, 96, 96)), options=WEIGHTS)


@program("transformers")
def llama_logits(draw: Draw) -> Built:
    from transformers import FlaxLlamaForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=2000,
        max_position_embeddings=128,
    )
    model = FlaxLlamaForCausalLM(config, seed=0)

    def logits(params: Any, ids: Any) -> Any:
        return model(ids, params=params).logits

    return Built(logits, (model.params, draw.integers(2000, 2, 32)), options=WEIGHTS)


@program("transformers")
def resnet_features(draw: Draw) -> Built:
    import jax
    from transformers import FlaxResNetModel, ResNetConfig

    config = ResNetConfig(embedding_size=32, hidden_sizes=[32, 64, 128], depths=[1, 1, 1], layer_type="basic")
    model = FlaxResNetModel(config, input_shape=(1, 64, 64, 3), _do_init=False)
    params = jax.jit(model.init_weights, static_argnums=1)(jax.random.key(0), model.input_shape)

    def features(params: Any, images: Any) -> Any:
        return model(images, params=params).pooler_output

    return Built(features, (params, draw.normal(4, 3, 64, 64)), options=WEIGHTS)


@program("flax")
def linen_encoder(draw: Draw) -> Built:
    import jax
    from flax import linen as nn

    class Block(nn.Module):
        heads: int

        @nn.compact
        def __call__(self, x: Any, *, train: bool) -> Any:
            y = nn.MultiHeadDotProductAttention(num_heads=self.heads, dropout_rate=0.1, deterministic=not train)(
                nn.LayerNorm()(x)
            )
            x = x + nn.Dropout(0.1, deterministic=not train)(y)
            y = nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x))))
            return x + nn.Dropout(0.1, deterministic=not train)(y)

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, ids: Any, *, train: bool = False) -> Any:
            x = nn.Embed(1000, 128)(ids) + self.param("positions", nn.initializers.normal(0.02), (64, 128))
            for _ in range(2):
                x = Block(heads=4)(x, train=train)
            return nn.Dense(10)(x.mean(axis=1))

    model, ids = Encoder(), draw.integers(1000, 8, 64)
    variables = jax.jit(model.init)(jax.random.key(0), ids)

    def forward(variables: Any, ids: Any, key: Any) -> Any:
        return model.apply(variables, ids, train=True, rngs={"dropout": key})

    return Built(forward, (variables, ids, jax.random.key(1)), options=WEIGHTS)


@program("flax")
def linen_lstm(draw: Draw) -> Built:
    import jax
    from flax import linen as nn

    class Tagger(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            forward = nn.RNN(nn.LSTMCell(64))
            backward = nn.RNN(nn.GRUCell(64))
            return nn.Dense(12)(nn.Bidirectional(forward, backward)(x))

    model, x = Tagger(), draw.normal(8, 40, 32)
    variables = jax.jit(model.init)(jax.random.key(0), x)
    return Built(lambda variables, x: model.apply(variables, x), (variables, x), options=WEIGHTS)


@program("haiku")
def haiku_mobilenet(draw: Draw) -> Built:
    import haiku as hk
    import jax

    def forward(images: Any, is_training: bool) -> Any:
        net = hk.nets.MobileNetV1(strides=(1, 2, 1, 2, 1), channels=(32, 64, 64, 128, 128), num_classes=50)
        return net(images, is_training)

    net, images = hk.without_apply_rng(hk.transform_with_state(forward)), draw.normal(2, 64, 64, 3)
    params, state = jax.jit(net.init, static_argnums=2)(jax.random.key(0), images, True)

    def classify(weights: Any, images: Any) -> Any:
        return net.apply(*weights, images, False)[0]

    return Built(classify, ((params, state), images), options=WEIGHTS)


@program("haiku")
def haiku_unroll(draw: Draw) -> Built:
    import haiku as hk
    import jax

    def forward(sequence: Any) -> Any:
        core = hk.DeepRNN([hk.LSTM(96), jax.nn.relu, hk.GRU(48), hk.Linear(5)])
        outputs, _ = hk.dynamic_unroll(core, sequence, core.initial_state(sequence.shape[1]))
        return outputs

    net, sequence = hk.without_apply_rng(hk.transform(forward)), draw.normal(30, 8, 24)
    return Built(net.apply, (net.init(jax.random.key(0), sequence), sequence), options=WEIGHTS)


@program("equinox")
def equinox_cnn(draw: Draw) -> Built:
    import equinox as eqx
    import jax

    class Net(eqx.Module):
        layers: list[Any]

        def __init__(self, key: Any) -> None:
            one, two, three, four = jax.random.split(key, 4)
            self.layers = [
                eqx.nn.Conv2d(1, 8, kernel_size=4, key=one),
                eqx.nn.MaxPool2d(kernel_size=2, stride=2),
                jax.nn.relu,
                eqx.nn.Conv2d(8, 16, kernel_size=3, key=two),
                jax.nn.relu,
                jax.numpy.ravel,
                eqx.nn.Linear(16 * 9 * 9, 64, key=three),
                jax.nn.sigmoid,
                eqx.nn.Linear(64, 10, key=four),
                jax.nn.log_softmax,
            ]

        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    arrays, rest = eqx.partition(Net(jax.random.key(0)), eqx.is_array)

    def predict(arrays: Any, images: Any) -> Any:
        return jax.vmap(eqx.combine(arrays, rest))(images)

    return Built(predict, (arrays, draw.uniform(32, 1, 25, 25)), options=WEIGHTS)


@program("penzai")
def penzai_transformer(draw: Draw) -> Built:
    import jax
    from penzai import pz
    from penzai.models.transformer.variants import llamalike_common

    config = llamalike_common.LlamalikeTransformerConfig(
        num_kv_heads=2,
        query_head_multiplier=2,
        embedding_dim=128,
        projection_dim=32,
        mlp_hidden_dim=384,
        num_decoder_blocks=2,
        vocab_size=1000,
        mlp_variant="swiglu",
        tie_embedder_and_logits=False,
        rope_wavelength=10_000,
        rms_norm_eps=1e-5,
        attention_type=llamalike_common.AttentionTypeGlobalCausal(),
        parameter_dtype=jax.numpy.float32,
        activation_dtype=jax.numpy.float32,
    )
    model = llamalike_common.build_llamalike_transformer(config, init_base_rng=jax.random.key(0))
    unbound, params = pz.unbind_params(model, freeze=True)
    tokens = pz.nx.wrap(draw.integers(1000, 2, 24)).tag("batch", "seq")

    def logits(params: Any, tokens: Any) -> Any:
        return pz.bind_variables(unbound, params)(tokens)

    return Built(logits, (params, tokens), options=WEIGHTS)
