"""Reading a recipe: YAML as AutoModel spells it, plus `bake:`, into the frozen types of `pipeline.config`.

    document ─► overrides (--set, flags) ─► recipe kind ─┬─► groups, bake, rules            ─► Config
                                                         └─► vlm_sources, vlm_bake, vlm_…   ─► VlmConfig

Every complaint names file, key, value and the nearest valid key (`errors`); nothing here touches a source or a
tokenizer.
"""
