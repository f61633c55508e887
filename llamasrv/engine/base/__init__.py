"""What the other rooms of the engine share: data, options, and the interface of a back end."""
