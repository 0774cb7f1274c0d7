# SPDX-License-Identifier: Apache-2.0
"""Writes dcp-2.15/put-off with PyTorch 2.15: python write_put_off.py, in this folder."""
import torch
import torch.distributed.checkpoint as dcp

c = torch.complex(torch.arange(6.0).reshape(2, 3), -1 - torch.arange(6.0).reshape(2, 3))
state = {"conj": c.conj(), "adjoint": c.mH, "imag": c.conj().imag, "plain": c.clone()}
dcp.save(state, checkpoint_id="dcp-2.15/put-off")
