"""Conversation sources of the VLM recipe, one file per kind: rows in, conversations and media references out.

Every source becomes AutoModel's form, a list of {"role", "content": [parts]}, in which a media part carries only the
number of its medium: {"type": "image", "media": 0}. The medium itself (`pipeline.vlm_records.Medium`) says where its
bytes lie.
"""
