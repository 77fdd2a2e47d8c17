"""What methods share, part by part; import from the part that has it.

================== =====================================================================================================
private_layers     some layers stay on the clients: which ones, and when they train (`PrivateLayers`, `in_turn`)
server_step        the server goes further, or less far, than to the mean (`ServerStep`)
class_statistics   means class by class, over batches, data and clients (`ClassMeans`, `shared_means`, `global_of`,
                   `add_rows`, `distance`): prototypes, soft labels
heads              the output layer by itself (`head_outputs`, `initial_head`, `check_head`)
on_features        something is done to the features before the output layer, or beside it (`OnFeatures`)
feature_networks   clients share networks on the features (`FeatureNets`)
collection         the server keeps every client's latest model (`Collection`)
draws              models that are drawn anew (`draw_like`)
unit_splits        layers with shared and personal units (`SplitUnits`)
slices             the leading slices of a model (`slice_shapes`, `cut`, `pad`)
================== =====================================================================================================
"""
