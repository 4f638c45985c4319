"""Pixels only: image headers, decoding, the resizing rule, patches, video frames.

    encoded bytes ──inspect_image──► ImageEntry: size, conditions, fault           (index: headers, no pixels if it can)
    size          ──planned_size───► the size the packer counts                    (plan)
    encoded bytes ──decode_rgb─────► RGB image ──resample► uint8 ──patchify──► rows (render)

Every verdict is Pillow's own, under the process-wide settings of the reference (`settings`). Nothing imports torch.

    faults.py        ImageFault and the reason names
    settings.py      the reference's Pillow settings
    prefixed.py      a file that is read by its head first
    opening.py       Pillow's verdict on a header, as a reason name
    completeness.py  is the picture all there? told without decoding
    header.py        inspect_image
    colour.py        any mode to RGB, orientation, and the corrections of both
    decode.py        decode_rgb
    resize.py        planned_size, resize
    resample.py      resample: the pixels of resize, faster (_resample.c)
    patches.py       patchify, unpatchify, position_ids
    video.py         frame counts, frame choice, frames
"""
