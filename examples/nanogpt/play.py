"""Settings for a small model of one play, on CPUs. `prepare.py` writes its data."""

dataset = "play"
out_dir = "out-play"
eval_interval = 250
eval_iters = 20
log_interval = 10
always_save_checkpoint = False

gradient_accumulation_steps = 8
batch_size = 4
block_size = 64
n_layer = 4
n_head = 4
n_embd = 128
dropout = 0.1

learning_rate = 1e-3
max_iters = 2000
lr_decay_iters = 2000
min_lr = 1e-4
beta2 = 0.99
warmup_iters = 100

compile = False  # noqa: A001 (nanoGPT has this name)
